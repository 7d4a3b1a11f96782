"""When to leave spot. Pure: time, history and prices come in as arguments, a decision goes out."""
