package proc

// MarkEnv is the variable that tells the processes of a box from all others. Programs
// that a process starts inherit it.
const MarkEnv = "DORMOUSE_PROCESS"
