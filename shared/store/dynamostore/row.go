package dynamostore

import (
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// row is an item of the table, or the values of an expression.
type row map[string]types.AttributeValue

func str[S ~string](v S) types.AttributeValue { return &types.AttributeValueMemberS{Value: string(v)} }

func num[N ~int | ~int64](v N) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(int64(v), 10)}
}

func bin(v []byte) types.AttributeValue { return &types.AttributeValueMemberB{Value: v} }

func (r row) str(name string) string {
	if v, ok := r[name].(*types.AttributeValueMemberS); ok {
		return v.Value
	}
	return ""
}

// num returns a number, 0 if there is none.
func (r row) num(name string) int64 {
	v, ok := r[name].(*types.AttributeValueMemberN)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(v.Value, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// bin returns bytes, nil if there are none.
func (r row) bin(name string) []byte {
	if v, ok := r[name].(*types.AttributeValueMemberB); ok {
		return v.Value
	}
	return nil
}

func (r row) flag(name string) bool {
	v, ok := r[name].(*types.AttributeValueMemberBOOL)
	return ok && v.Value
}

// expire sets the time after which reads treat the row as missing. DynamoDB may delete the row when
// the duration keep has passed since that time. The zero time means never.
func (r row) expire(at time.Time, keep time.Duration) {
	if at.IsZero() {
		return
	}
	r["u"] = num(at.UnixMicro())
	r["x"] = num(at.Add(keep).Unix() + 1)
}

// expires is when the row expires, zero for never.
func (r row) expires() time.Time {
	if _, ok := r["u"]; !ok {
		return time.Time{}
	}
	return time.UnixMicro(r.num("u"))
}

// alive reports whether the row exists and has not expired.
func (r row) alive(now time.Time) bool {
	return r != nil && (r["u"] == nil || r.num("u") > now.UnixMicro())
}

// record returns the JSON of a record, as package storage encoded it.
func (r row) record() []byte { return []byte(r.str("j")) }

func (r row) setRecord(record []byte) { r["j"] = str(string(record)) }

func key(pk, sk string) row { return row{"PK": str(pk), "SK": str(sk)} }

// maxKey is the longest key part taken from a client, in bytes. DynamoDB takes 2,048
// bytes for PK and 1,024 for SK and calls longer keys invalid.
const maxKey = 900

func sessionKey(id storage.ID) string { return "S#" + string(id) }

func connectionKey(id string) string { return "C#" + id }

func boxKey(id storage.BoxID) string { return "B#" + string(id) }

func itemKey(id storage.StreamID) string { return "q#" + string(id) }

// digits is how many digits an index has in a key, so that keys sort as numbers.
const digits = 19

func eventKey(stream storage.StreamID, first storage.Index) string {
	n := strconv.FormatInt(int64(first), 10)
	return streamKey(stream) + strings.Repeat("0", digits-len(n)) + n
}

// streamKey returns the beginning of the keys of a stream's batches.
func streamKey(stream storage.StreamID) string {
	if stream == storage.Standalone {
		stream = "-"
	}
	return "e#" + string(stream) + "#"
}

func streamOf(r row) storage.StreamID {
	sk := r.str("SK")
	stream := sk[len("e#") : len(sk)-digits-len("#")]
	if stream == "-" {
		return storage.Standalone
	}
	return storage.StreamID(stream)
}

// firstOf and lastOf return the indexes of the first and the last event of a batch.
func firstOf(r row) storage.Index {
	sk := r.str("SK")
	n, err := strconv.ParseInt(sk[len(sk)-digits:], 10, 64)
	if err != nil {
		return 0
	}
	return storage.Index(n)
}

func lastOf(r row) storage.Index { return firstOf(r) + storage.Index(r.num("n")) - 1 }

// lastKey returns a key behind all batches of a stream.
func lastKey(stream storage.StreamID) string { return streamKey(stream) + strings.Repeat("9", digits) }
