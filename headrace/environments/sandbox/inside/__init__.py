"""Code that runs inside the sandbox. Standard library only; nothing here holds a secret or is trusted outside."""
