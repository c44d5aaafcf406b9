"""What the user types. Nobody imports it but `cli`; child processes are started by name."""
