"""Code generation: values in, values out. Folders and files are described in pipeline order in README.md."""
