package main

import (
	"crypto/sha256"
	"encoding/hex"
	"math"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "anabranch.test/client/gen/anabranch/v1"
)

// The sample steps of test/wire/samples.ts, built by a Go program with the generated messages only.

var (
	putState    = noise(600*1024, 3)
	inlineState = noise(512*1024, 2)
	screenshot  = noise(20_000, 1)
)

const (
	sampleName     = "sample – 例"
	sampleTask     = "wire/1"
	sampleMetadata = `{"a": 1, "big":9007199254740993}`
)

var sampleLabels = map[string]string{"key ü": "välue", "empty": ""}

func noise(size int, seed uint32) []byte {
	data := make([]byte, size)
	x := seed
	for i := range data {
		x = x*1664525 + 1013904223
		data[i] = byte(x >> 24)
	}
	return data
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func text(value string) *pb.Content { return &pb.Content{Text: proto.String(value)} }

func json(value string) *pb.Content { return &pb.Content{Json: proto.String(value)} }

func bytesOf(data []byte, mediaType string) *pb.Content {
	return &pb.Content{Data: data, MediaType: mediaType}
}

func tensor(dtype string, shape []int32, data []byte) *pb.Content {
	return &pb.Content{Tensor: &pb.Tensor{Dtype: dtype, Shape: shape, Data: data}}
}

func sampleSteps() []*pb.Step {
	put := digestOf(putState)
	return []*pb.Step{
		{Observations: []*pb.Observation{{Type: "reset", Content: json(`{"z": 1,  "n":9007199254740993, "a":1.0}`)}}},
		{
			StepNumber: 1,
			Actions: []*pb.Action{
				{
					Type:     "tool_call",
					Name:     "écrire",
					CallId:   "c1",
					Content:  text("héllo 🌊 中文 e\u0301 \u202e\u2028 \\u0000 \"\n\t"),
					TokenIds: []int32{0, math.MaxInt32, -1},
					Logprobs: []float32{-0.5, float32(math.Inf(-1)), 0},

					PromptTokenIds: []int32{math.MinInt32, 128},
					KeptTokens:     proto.Int32(0),
				},
				{Type: "noop"},
			},
			Observations: []*pb.Observation{
				{Type: "tool_result", CallId: "c1", IsError: true, Content: text("")},
				{Type: "silent"},
			},
			Reward: proto.Float64(0),
			States: []*pb.StepState{{Name: "env", Data: []byte("état 1"), MediaType: "text/plain; charset=utf-8"}},
		},
		{
			StepNumber: 2,
			Reward:     proto.Float64(math.NaN()),
			Metrics: map[string]float64{
				"nan":           math.NaN(),
				"inf":           math.Inf(1),
				"-inf":          math.Inf(-1),
				"zero":          0,
				"negative_zero": math.Copysign(0, -1),
				"tiny":          math.SmallestNonzeroFloat64,
				"large":         math.MaxFloat64,
				"third":         1.0 / 3,
				"ключ 🔑":        1<<53 - 1,
			},
		},
		{
			StepNumber:   3,
			Actions:      []*pb.Action{{Type: "code", Content: json("null")}},
			Reward:       proto.Float64(math.Inf(1)),
			InfoJson:     `{"b":[1.0,1E+2,-0],"a":"\u00e9\ud83c\udf0a"}`,
			MetadataJson: "[]",
			StartTime:    &timestamppb.Timestamp{Seconds: -1, Nanos: 999_999_999},
			EndTime:      &timestamppb.Timestamp{Seconds: 253402300799, Nanos: 1},
		},
		{
			StepNumber: 4,
			Reward:     proto.Float64(math.Inf(-1)),
			Terminated: true,
			Truncated:  true,
			Labels:     map[string]string{"phase": "träin", "empty": ""},
		},
		{
			StepNumber: 5,
			Reward:     proto.Float64(0.1),
			States: []*pb.StepState{
				{Name: "", Data: []byte{}},
				{Name: "memory", Data: inlineState, MediaType: "application/octet-stream"},
				{Name: "put", Digest: put, MediaType: "application/x-put"},
			},
		},
		{
			StepNumber: 6,
			Actions: []*pb.Action{
				{Type: "upload", Content: bytesOf([]byte{0, 255, 0, 128}, "image/png")},
				{
					Type:                "reply",
					TokenIdsState:       proto.String(put),
					PromptTokenIdsState: proto.String(put),
					KeptTokens:          proto.Int32(math.MaxInt32),
				},
			},
			Observations: []*pb.Observation{
				{Type: "empty", Content: bytesOf([]byte{}, "text/plain")},
				{Type: "screenshot", Content: bytesOf(screenshot, "image/png")},
				{Type: "named", Content: &pb.Content{StateDigest: proto.String(put), MediaType: "application/x-put"}},
				{Type: "link", Content: &pb.Content{Uri: proto.String("https://example.org/a?b=c#é"), MediaType: "text/html"}},
				{Type: "vector", Content: tensor("<f4", []int32{2}, []byte{0, 0, 192, 63, 0, 0, 128, 255})},
				{Type: "scalar", Content: tensor("|b1", nil, []byte{1})},
				{Type: "pixels", Content: tensor("|u1", []int32{100, 200}, screenshot)},
				{Type: "put", Content: &pb.Content{
					Tensor: &pb.Tensor{Dtype: ">i2", Shape: []int32{300, 1024}, StateDigest: proto.String(put)},
				}},
			},
			Reward: proto.Float64(-2.5),
		},
	}
}

func branchSteps() []*pb.Step {
	env := []byte("branch 4")
	return []*pb.Step{
		{
			StepNumber: 4,
			Actions:    []*pb.Action{{Type: "text", Content: text("branch")}},
			States:     []*pb.StepState{{Name: "env", Data: env, Digest: digestOf(env)}},
		},
		{StepNumber: 5, Reward: proto.Float64(1.5), Truncated: true},
	}
}

func leafSteps() []*pb.Step {
	return []*pb.Step{
		{StepNumber: 5, Reward: proto.Float64(2), States: []*pb.StepState{{Name: "env", Data: []byte("leaf 5")}}},
	}
}

// asRead returns a step that was sent in the form that a read returns: states by digest and size.
func asRead(sent *pb.Step) *pb.Step {
	step := withoutServerFields(sent)
	for _, state := range step.States {
		data := state.Data
		if data == nil {
			data = putState
		}
		if state.Name == "" {
			state.Name = "env"
		}
		state.Digest, state.Size, state.Data = digestOf(data), int64(len(data)), nil
	}
	contents := []*pb.Content{}
	for _, action := range step.Actions {
		contents = append(contents, action.Content)
	}
	for _, observation := range step.Observations {
		contents = append(contents, observation.Content)
	}
	for _, content := range contents {
		if content.GetStateDigest() != "" {
			content.Size = int64(len(putState))
		}
		if len(content.GetData()) >= 16*1024 {
			content.StateDigest = proto.String(digestOf(content.Data))
			content.Size = int64(len(content.Data))
			content.Data = nil
		}
		if tensor := content.GetTensor(); len(tensor.GetData()) >= 16*1024 {
			tensor.StateDigest = proto.String(digestOf(tensor.Data))
			tensor.Data = nil
		}
	}
	return step
}

func withoutServerFields(read *pb.Step) *pb.Step {
	step := proto.Clone(read).(*pb.Step)
	step.CommitTime, step.WriterEpoch, step.RewardSum = nil, 0, 0
	return step
}
