package storage

// Units are amounts that AWS bills, each in the unit of its price, for one call or any number of calls.
type Units struct {
	Invocations       float64 `json:"invocations,omitempty"`        // of Lambda functions
	GBSeconds         float64 `json:"gb_seconds,omitempty"`         // of Lambda functions
	Requests          float64 `json:"requests,omitempty"`           // of the REST API, one for each started 10 MB of the answer
	Messages          float64 `json:"messages,omitempty"`           // of WebSocket APIs, both ways, one for each started 32 KB
	ConnectionMinutes float64 `json:"connection_minutes,omitempty"` // of WebSocket APIs
	ReadUnits         float64 `json:"read_units,omitempty"`         // of DynamoDB, 4 KB, strongly consistent
	WriteUnits        float64 `json:"write_units,omitempty"`        // of DynamoDB, 1 KB
	StoredGBMonths    float64 `json:"stored_gb_months,omitempty"`   // of DynamoDB
	VCPUSeconds       float64 `json:"vcpu_seconds,omitempty"`       // of tasks
	TaskGBSeconds     float64 `json:"task_gb_seconds,omitempty"`    // of tasks
	AddressSeconds    float64 `json:"address_seconds,omitempty"`    // of tasks with a public IPv4 address
	LogGB             float64 `json:"log_gb,omitempty"`             // ingested by CloudWatch Logs
	OutGB             float64 `json:"out_gb,omitempty"`             // to the internet
}

// Each calls the function visit for every field. name is the field's name in files of prices, and n
// points into u.
func (u *Units) Each(visit func(name string, n *float64)) {
	visit("invocations", &u.Invocations)
	visit("gb_seconds", &u.GBSeconds)
	visit("requests", &u.Requests)
	visit("messages", &u.Messages)
	visit("connection_minutes", &u.ConnectionMinutes)
	visit("read_units", &u.ReadUnits)
	visit("write_units", &u.WriteUnits)
	visit("stored_gb_months", &u.StoredGBMonths)
	visit("vcpu_seconds", &u.VCPUSeconds)
	visit("task_gb_seconds", &u.TaskGBSeconds)
	visit("address_seconds", &u.AddressSeconds)
	visit("log_gb", &u.LogGB)
	visit("out_gb", &u.OutGB)
}

// Plus adds each field of v to the same field of u and returns the result.
func (u Units) Plus(v Units) Units {
	added := make([]float64, 0, 16)
	v.Each(func(_ string, n *float64) { added = append(added, *n) })
	i := 0
	u.Each(func(_ string, n *float64) { *n += added[i]; i++ })
	return u
}

// Times multiplies each field of u by k and returns the result.
func (u Units) Times(k float64) Units {
	u.Each(func(_ string, n *float64) { *n *= k })
	return u
}

// WithoutTasks returns u without tasks and their addresses, for bills that count these separately.
func (u Units) WithoutTasks() Units {
	u.VCPUSeconds, u.TaskGBSeconds, u.AddressSeconds = 0, 0, 0
	return u
}
