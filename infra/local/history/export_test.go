package history

// Taken reports whether a save has taken all that was recorded, and Record can go on.
func (h *History) Taken() bool {
	if !h.mu.TryLock() {
		return false
	}
	defer h.mu.Unlock()
	return len(h.calls) == 0
}

// Saving reports whether a save is under way.
func (h *History) Saving() bool {
	if h.saving.TryLock() {
		h.saving.Unlock()
		return false
	}
	return true
}
