package dynamostore

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestBulk(t *testing.T) {
	spent := func(s storage.Store) storagetest.Spent {
		u := s.(*Store).Usage()
		sum := storagetest.Spent{Units: u.ReadUnits + u.WriteUnits}
		for _, n := range u.Requests {
			sum.Requests += n
		}
		return sum
	}
	storagetest.Bulk(t, storagetest.Harness{Open: func(t *testing.T) storage.Store { return open(t, Options{}) }, Fill: fill}, spent)
}

// fill writes the rows that Create would, 25 a request.
func fill(t *testing.T, s storage.Store, list []storage.Session) {
	t.Helper()
	var writes []types.WriteRequest
	for _, x := range list {
		x.Rev = 1
		r, err := sessionRow(x)
		commontest.OK(t, err)
		writes = append(writes, types.WriteRequest{PutRequest: &types.PutRequest{Item: r}})
	}
	commontest.OK(t, s.(*Store).writeMany(t.Context(), writes))
}

// sizeOf returns the size of an item as DynamoDB measures it: names and values.
func sizeOf(r row) (n int) {
	for name, v := range r {
		n += len(name)
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			n += len(v.Value)
		case *types.AttributeValueMemberB:
			n += len(v.Value)
		case *types.AttributeValueMemberN:
			n += len(v.Value)/2 + 2
		default:
			n++
		}
	}
	return n
}

func TestAnIdleSessionIsSmall(t *testing.T) {
	s := open(t, Options{})
	x := storagetest.Idle()
	commontest.OK(t, s.Create(t.Context(), x))
	r, err := s.get(t.Context(), sessionKey(x.ID), "m")
	commontest.OK(t, err)
	n := sizeOf(r)
	t.Logf("an idle session has %d bytes", n)
	if n > 1500 {
		t.Errorf("%d bytes, want at most 1,500", n)
	}
}
