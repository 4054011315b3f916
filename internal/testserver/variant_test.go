package testserver

import "testing"

func TestVariant(t *testing.T) {
	for value, want := range map[string]bool{"": false, "none": false, "all": true} {
		t.Run("LOCKER_TEST="+value, func(t *testing.T) {
			t.Setenv(selection, value)
			if All() != want {
				t.Errorf("All() = %v, want %v", All(), want)
			}
			var skipped bool
			t.Run("variant", func(t *testing.T) {
				defer func() { skipped = t.Skipped() }()
				Variant(t, "another test covers it")
			})
			if skipped == want {
				t.Errorf("Variant skipped the test: %v, want %v", skipped, !want)
			}
		})
	}
}
