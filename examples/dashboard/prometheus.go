package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// scrapeInterval is a fifteenth of Prometheus's usual one, so that a short run has many points.
	scrapeInterval = time.Second
	// rateInterval is a bit more than what Grafana computes for $__rate_interval from
	// scrapeInterval.
	rateInterval = 6 * scrapeInterval

	scrapeConfig = `
global: {scrape_interval: 1s}
scrape_configs:
- job_name: service
  static_configs: [{targets: ["%s"]}]
`
)

// prometheusAPI queries a Prometheus server about a period of time.
type prometheusAPI struct {
	addr     string
	from, to time.Time
}

// series is a line of a panel.
type series struct {
	name   string
	at     []float64 // seconds since the beginning
	values []float64 // NaN if there is none
}

// replace puts values in place of Grafana's variables.
func (p prometheusAPI) replace(expr string) string {
	return strings.NewReplacer(
		"$job", ".*",
		"$__rate_interval", rateInterval.String(),
		"$__range", p.to.Sub(p.from).Round(time.Second).String(),
	).Replace(expr)
}

// query returns the series of a query over the whole time. legend is in Grafana's format.
func (p prometheusAPI) query(ctx context.Context, expr, legend string) ([]series, error) {
	const step = 2 * time.Second
	parameters := url.Values{
		"query": {p.replace(expr)}, "step": {step.String()},
		"start": {p.from.Format(time.RFC3339Nano)}, "end": {p.to.Format(time.RFC3339Nano)},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/api/v1/query_range?"+parameters.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any // seconds, and the number as a string
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	var all []series
	for _, result := range answer.Data.Result {
		s := series{name: label(legend, result.Metric)}
		found := map[int]float64{}
		for _, v := range result.Values {
			at, _ := v[0].(float64)
			text, _ := v[1].(string)
			number, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", expr, err)
			}
			found[int(math.Round((at-seconds(p.from))/step.Seconds()))] = number
		}
		for i := 0; float64(i)*step.Seconds() <= p.to.Sub(p.from).Seconds(); i++ {
			value, ok := found[i]
			if !ok {
				value = math.NaN()
			}
			s.at, s.values = append(s.at, float64(i)*step.Seconds()), append(s.values, value)
		}
		all = append(all, s)
	}
	return all, nil
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

var labelName = regexp.MustCompile(`{{(\w+)}}`)

func label(legend string, metric map[string]string) string {
	return labelName.ReplaceAllStringFunc(legend, func(name string) string {
		return metric[labelName.FindStringSubmatch(name)[1]]
	})
}
