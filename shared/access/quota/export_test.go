package quota

import "time"

// SkewForTest makes the clock of an instance wrong.
func (l *Limiter) SkewForTest(by time.Duration) { l.skew = by }
