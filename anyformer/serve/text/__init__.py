"""Between the texts of requests and the ids of the engine."""
