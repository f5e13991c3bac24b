package dynamostore

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// maxInline is how many bytes of data a row holds. DynamoDB takes 400 KB for a whole
// item, including keys and names.
const maxInline = 350 << 10

// checkInline returns TooLarge if data that cannot be split into parts is longer than
// maxInline.
func checkInline(what string, sizes ...int) error {
	sum := 0
	for _, n := range sizes {
		sum += n
	}
	if sum > maxInline {
		return storage.Errorf(storage.TooLarge, "%s has %d bytes; at most %d are kept", what, sum, maxInline)
	}
	return nil
}

// spill sets the data of a row that is about to be written. The data goes into the row, or if it is
// longer than maxInline, into parts that expire at partsUntil.
//
// The name of the parts comes from the row's key and the bytes. So a repeated write changes
// nothing, and another writer of the same row has other parts.
func (q *requests) spill(ctx context.Context, r row, data []byte, partsUntil time.Time) error {
	if len(data) <= maxInline {
		if data != nil {
			r["d"] = bin(data)
		}
		return nil
	}
	name := partsName(r, data)
	var writes []types.WriteRequest
	for n := 0; len(data) > 0; n++ {
		p := partKey(name, n)
		p["d"] = bin(data[:min(len(data), maxInline)])
		data = data[min(len(data), maxInline):]
		p.expire(partsUntil, 0)
		writes = append(writes, types.WriteRequest{PutRequest: &types.PutRequest{Item: p}})
	}
	r["k"], r["z"] = num(len(writes)), str(name)
	return q.writeMany(ctx, writes)
}

func partsName(r row, data []byte) string {
	h := sha256.New()
	h.Write(fmt.Appendf(nil, "%q %q ", r.str("PK"), r.str("SK")))
	h.Write(data)
	return shortHash(h.Sum(nil))
}

// shortHash returns the first 20 bytes of a SHA-256 as text for a key.
func shortHash(sum []byte) string {
	return strings.ToLower(base32.HexEncoding.EncodeToString(sum[:20]))
}

func partKey(name string, n int) row { return key(fmt.Sprintf("Z#%s#%d", name, n), "z") }

func partKeys(r row) []row {
	var keys []row
	for n := range int(r.num("k")) {
		keys = append(keys, partKey(r.str("z"), n))
	}
	return keys
}

// data returns the data of a row that was read. ok is false if the row has no data,
// or if its parts were deleted after the row was read.
func (q *requests) data(ctx context.Context, r row) (data []byte, ok bool, err error) {
	keys := partKeys(r)
	if len(keys) == 0 {
		return r.bin("d"), r["d"] != nil, nil
	}
	rows, err := q.getMany(ctx, keys)
	if err != nil {
		return nil, false, err
	}
	parts, size := map[string][]byte{}, 0
	for _, p := range rows {
		parts[p.str("PK")] = p.bin("d")
		size += len(p.bin("d"))
	}
	data = make([]byte, 0, size)
	for _, k := range keys {
		part, found := parts[k.str("PK")]
		if !found {
			return nil, false, nil
		}
		data = append(data, part...)
	}
	return data, true, nil
}

// deletions returns the writes that delete the parts of a row.
func deletions(r row) []types.WriteRequest {
	var writes []types.WriteRequest
	for _, k := range partKeys(r) {
		writes = append(writes, types.WriteRequest{DeleteRequest: &types.DeleteRequest{Key: k}})
	}
	return writes
}
