package certificates

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// issuer is a certificate authority that counts the certificates it has issued.
type issuer struct {
	key    crypto.Signer
	issued atomic.Int32
}

func (i *issuer) IssuerKey() string { return "test" }

func (i *issuer) Issue(_ context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	i.issued.Add(1)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, request.PublicKey, i.key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// Servers that need a certificate at the same time obtain it once and share it.
func TestStorage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	authority, disk := &issuer{key: key}, &certmagic.FileStorage{Path: t.TempDir()}
	var running sync.WaitGroup
	for _, client := range replicas.Clients(t, 4) {
		storage := NewStorage(disk, redisv9.New(client, redisv9.WithPrefix("certmagic:")))
		var config *certmagic.Config
		cache := certmagic.NewCache(certmagic.CacheOptions{
			GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
		})
		t.Cleanup(cache.Stop)
		config = certmagic.New(cache, certmagic.Config{
			Storage: storage, Issuers: []certmagic.Issuer{authority},
		})
		running.Go(func() {
			assert.NoError(t, config.ObtainCertSync(ctx, "example.com"))
			assert.True(t, storage.Exists(ctx, certmagic.StorageKeys.SiteCert("test", "example.com")))
		})
	}
	running.Wait()
	assert.EqualValues(t, 1, authority.issued.Load())
}

func TestUnlockOfNothing(t *testing.T) {
	t.Parallel()
	storage := NewStorage(nil, memory.New())
	require.NoError(t, storage.Lock(t.Context(), "a"))
	assert.NoError(t, storage.Unlock(t.Context(), "a"))
	assert.ErrorIs(t, storage.Unlock(t.Context(), "a"), locker.ErrNotHeld)
}
