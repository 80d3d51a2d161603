"""The process that looks after queues without a director. Each role repeats one step, and every act is one script."""
