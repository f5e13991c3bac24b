package runner

import "github.com/dormouse-mcp/dormouse/shared/core/frame"

// again returns the request that s sends again, nil for a nil s.
func again(s *Suspension) []byte {
	if s == nil {
		return nil
	}
	return s.Raw
}

// asks returns the Asks of an events frame. It is nil for a nil s.
func asks(s *Suspension, round int) *frame.Asks {
	if s == nil {
		return nil
	}
	return &frame.Asks{Round: round, Questions: s.Questions, Within: s.Within.Milliseconds(), Len: len(s.Raw)}
}
