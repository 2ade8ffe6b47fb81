"""The server: any model behind the OpenAI API, and a page that shows what it thinks."""
