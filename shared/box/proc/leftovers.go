package proc

// MarkEnv is the environment variable with the mark of a process; see [EndMarked]. Programs that
// the process starts inherit the variable.
const MarkEnv = "DORMOUSE_PROCESS"
