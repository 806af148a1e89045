"""The HTML reports of a job and of a submission."""
