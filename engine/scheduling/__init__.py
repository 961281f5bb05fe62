"""Who runs next: requests, policies, the scheduler and its plans. Imports no torch."""
