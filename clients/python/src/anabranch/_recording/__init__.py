"""What is recorded: steps, their spool, and the thread that sends them."""
