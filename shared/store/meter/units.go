package meter

import (
	"math"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Units are counts of what AWS bills.
type Units = storage.Units

// Sizes of billed units.
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

// Task returns the units of a Fargate task of the given size that ran for some seconds. AWS bills
// whole seconds, at least sixty.
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
