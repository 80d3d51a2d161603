"""The process that looks after queues without a director. Each file is a role: a loop whose every act is one script."""
