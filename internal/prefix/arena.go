package prefix

// arena hands out numbered values from chunks, so that they are neither separate
// objects to the garbage collector nor moved when there are more of them.
type arena[T any] struct {
	chunks []*[chunk]T
	used   int32 // numbers given out so far
	live   int32
	spare  []int32
}

const chunk = 1024

func (a *arena[T]) get(id int32) *T { return &a.chunks[id/chunk][id%chunk] }

// take returns the number of a value in an undefined state.
func (a *arena[T]) take() int32 {
	a.live++
	if n := len(a.spare); n > 0 {
		id := a.spare[n-1]
		a.spare = a.spare[:n-1]
		return id
	}
	if int(a.used)%chunk == 0 {
		a.chunks = append(a.chunks, new([chunk]T))
	}
	a.used++
	return a.used - 1
}

func (a *arena[T]) give(id int32) {
	a.live--
	a.spare = append(a.spare, id)
}
