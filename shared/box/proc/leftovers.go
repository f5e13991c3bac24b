package proc

// MarkEnv is the environment variable with the mark of a box's process. Programs that
// the process starts inherit it.
const MarkEnv = "DORMOUSE_PROCESS"
