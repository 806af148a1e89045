"""Workers: request and result messages, cache lookup, and the build of one template or cubin."""
