package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/exampletest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
)

func Example() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	pool, err := pgxpool.NewWithConfig(ctx, postgres.Tuned(config))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	if err := postgres.EnsureSchema(ctx, pool); err != nil {
		fmt.Println(err)
		return
	}
	l := postgres.New(pool)

	pay := func(ctx context.Context) (err error) {
		lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()

		fmt.Println("holding", lease.Key())
		return nil
	}
	fmt.Println(pay(ctx))
}

// Applications that share a database keep apart by table.
func ExampleWithTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	table := postgres.WithTable("public.billing_locks")
	if err := postgres.EnsureSchema(ctx, pool, table); err != nil {
		fmt.Println(err)
		return
	}
	err = locker.Do(ctx, postgres.New(pool, table), "invoice/42", time.Minute, func(ctx context.Context) error {
		var holders int
		err := pool.QueryRow(ctx, "SELECT count(*) FROM billing_locks WHERE key = 'invoice/42'").Scan(&holders)
		fmt.Println("held by", holders)
		return err
	})
	fmt.Println(err)
}

// Which locks are held, by whom, and how to break one.
func ExampleLocker_List() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	l := postgres.New(pool)
	_, err = locker.Lock(ctx, l, "report/1", time.Minute, locker.WithToken("host-7/4711"))
	if err != nil {
		fmt.Println(err)
		return
	}

	for info, err := range l.List(ctx, "report/") {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(info.Key, "is held by", info.Token)
	}
	_, err = locker.Break(ctx, l, "report/1")
	fmt.Println(err)
}

func TestExamples(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://"+testserver.PostgresUser+"@"+testserver.Postgres(t).Addr+"/postgres")
	assert.Equal(t, "holding invoice/42\n<nil>\n", exampletest.Output(t, Example))
	assert.Equal(t, "held by 1\n<nil>\n", exampletest.Output(t, ExampleWithTable))
	assert.Equal(t, "report/1 is held by host-7/4711\n<nil>\n", exampletest.Output(t, ExampleLocker_List))
}
