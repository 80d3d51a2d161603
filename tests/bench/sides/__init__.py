"""Run ours and its references, each as processes of its own."""
