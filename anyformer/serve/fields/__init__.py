"""One table of fields for each endpoint: it drives reading, bounds, errors and the OpenAPI document."""
