//go:build race

package relay_test

// raceDetector reports whether this program was built with the race detector.
const raceDetector = true
