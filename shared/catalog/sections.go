package catalog

// Mistake returns a mistake in a section of the file that another package reads,
// x-dormouse.SECTION. Its place is that of key in the section, or of the section if there is
// no such key.
func (c *Catalog) Mistake(section, key, reason string) *Error {
	holder := c.file.root
	place := c.file.source.position(holder.at)
	for _, name := range []string{"x-dormouse", section, key} {
		m, ok := holder.get(name)
		if !ok {
			break
		}
		holder, place = m.value, c.file.source.position(m.at)
	}
	return &Error{Position: place, Reason: reason}
}
