"""The process that looks after queues nobody holds: one file per role, each a loop whose every act is one script."""
