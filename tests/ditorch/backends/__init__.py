"""The chips that ditorch knows, rehearsed on the simulated accelerator under each one's own device name."""
