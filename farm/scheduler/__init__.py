"""The scheduler of a coordinator: claims jobs, plans them, gives tasks to an executor, records the results."""
