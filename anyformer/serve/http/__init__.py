"""HTTP: connections, the ASGI application, who may ask, bodies and replies."""
