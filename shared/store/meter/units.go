package meter

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Units are billed amounts, each in the unit of its price. They can be of one call or of a
// year of calls: all are plain sums. The zero value is nothing.
type Units struct {
	Invocations       float64 `json:"invocations,omitempty"`        // of functions
	GBSeconds         float64 `json:"gb_seconds,omitempty"`         // of functions
	Requests          float64 `json:"requests,omitempty"`           // requests of the REST API; an answer counts as one more for each further 10 MB
	Messages          float64 `json:"messages,omitempty"`           // messages of WebSocket APIs, both ways, one for each 32 KB begun
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

// each calls visit for every field with its name in a file of prices.
func (u *Units) each(visit func(name string, n *float64)) {
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

// read decodes units; ok is false if text is not an object of numbers.
func (u *Units) read(text []byte) (ok bool) {
	return wire.Members(text, func(key string, value json.RawMessage) bool {
		number, err := strconv.ParseFloat(string(value), 64)
		u.each(func(name string, n *float64) {
			if name == key {
				*n = number
			}
		})
		return err == nil && !math.IsNaN(number) && !math.IsInf(number, 0)
	})
}

// Plus returns the sum of both.
func (u Units) Plus(v Units) Units {
	added := make([]float64, 0, 16)
	v.each(func(_ string, n *float64) { added = append(added, *n) })
	i := 0
	u.each(func(_ string, n *float64) { *n += added[i]; i++ })
	return u
}

// Times returns the units multiplied by k.
func (u Units) Times(k float64) Units {
	u.each(func(_ string, n *float64) { *n *= k })
	return u
}

// WithoutTasks returns the units without the time of boxes, for bills that count it
// separately.
func (u Units) WithoutTasks() Units {
	u.VCPUSeconds, u.TaskGBSeconds, u.AddressSeconds = 0, 0, 0
	return u
}

// Sizes of billed units, in bytes.
const (
	messageUnit = 32 << 10 // bytes of one billed WebSocket message
	gigabyte    = 1 << 30
	leastTask   = 60 // the least number of seconds that Fargate bills for a task
)

// Messages returns how many messages a WebSocket API bills for a message of size bytes.
func Messages(size int) float64 {
	return float64(max(1, (size+messageUnit-1)/messageUnit))
}

// GB returns a number of bytes in GB of 2^30 bytes.
func GB(size int64) float64 { return float64(size) / gigabyte }

// Task returns the units of a Fargate task that ran for a time: whole seconds, at least sixty.
// size is the size of the task.
func Task(seconds float64, size BoxSize) Units {
	billed := max(math.Ceil(seconds), leastTask)
	return Units{
		VCPUSeconds: billed * size.VCPUs, TaskGBSeconds: billed * size.MemoryMB / 1024, AddressSeconds: billed * size.Addresses,
	}
}

// BoxSize is the size of a task. MemoryMB is in MiB. Addresses is 1 for a task with a public
// address.
type BoxSize struct{ VCPUs, MemoryMB, Addresses float64 }

// DefaultBox returns the size of template.yaml's boxes.
func DefaultBox() BoxSize { return BoxSize{VCPUs: 0.25, MemoryMB: 512, Addresses: 1} }
