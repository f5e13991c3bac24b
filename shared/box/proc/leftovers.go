package proc

// MarkEnv is an environment variable. [EndMarked] finds processes by its value, the mark. Programs
// that a process starts inherit the variable.
const MarkEnv = "DORMOUSE_PROCESS"
