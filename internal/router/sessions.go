package router

import (
	"container/list"
	"time"

	"github.com/warmpath/warmpath/internal/prefix"
)

// Bounds on what is remembered of sessions and responses.
const (
	maxSessions  = 65_536
	sessionsLast = time.Hour
)

// session is where a session or a response is, and how many tokens it left there.
type session struct {
	key    prefix.Hash
	slot   *slot
	tokens int
	at     time.Time // last used
}

// sessions remembers the most recently used ones.
type sessions struct {
	byKey  map[prefix.Hash]*list.Element
	recent *list.List // of *session, the most recent in front
}

func newSessions() sessions {
	return sessions{byKey: map[prefix.Hash]*list.Element{}, recent: list.New()}
}

// get returns the session, or nil if there is none, it is too old or its replica is
// gone. It is valid until the next put.
func (s *sessions) get(key prefix.Hash, now time.Time) *session {
	e := s.byKey[key]
	if key == 0 || e == nil {
		return nil
	}
	v := e.Value.(*session)
	if now.Sub(v.at) > sessionsLast || v.slot.gone {
		s.remove(e)
		return nil
	}
	return v
}

func (s *sessions) put(key prefix.Hash, v session) {
	v.key = key
	if e := s.byKey[key]; e != nil {
		*e.Value.(*session) = v
		s.recent.MoveToFront(e)
		return
	}
	for s.recent.Len() >= maxSessions {
		s.remove(s.recent.Back())
	}
	s.byKey[key] = s.recent.PushFront(&v)
}

func (s *sessions) remove(e *list.Element) {
	delete(s.byKey, e.Value.(*session).key)
	s.recent.Remove(e)
}
