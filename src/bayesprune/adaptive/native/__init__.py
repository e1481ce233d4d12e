"""Native code for layers that take less time than it takes Python to call them: compiled when it is first used, done without otherwise."""
