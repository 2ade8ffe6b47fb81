"""Executing a study: jobs, the workers that do them, the queue that hands them out, and other engines that can."""
