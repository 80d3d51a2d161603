"""Who is measured, and what they are measured beside: each as processes of its own."""
