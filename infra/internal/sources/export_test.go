package sources

// Within returns the bundle with another limit for its files.
func (b *Bundle) Within(most int64) *Bundle {
	b.most = most
	return b
}
