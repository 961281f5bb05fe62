"""Who asks: the engine thread, the OpenAI routes, workloads."""
