package box

// MarkEnv is the variable that tells the processes of a box from all others. See
// [Server].Mark.
const MarkEnv = "DORMOUSE_PROCESS"
