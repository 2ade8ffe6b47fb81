"""The engine behind the server: in a thread of this process, or in a process of its own."""
