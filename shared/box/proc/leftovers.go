package proc

// MarkEnv is the environment variable by whose value, the mark, [EndMarked] finds a process. Programs
// that the process starts inherit the variable.
const MarkEnv = "DORMOUSE_PROCESS"
