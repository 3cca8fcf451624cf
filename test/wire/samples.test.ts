import { type ReflectList, type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import { expect, it } from 'vitest';
import {
  ActionSchema,
  ContentSchema,
  ObservationSchema,
  StepSchema,
  StepStateSchema,
  TensorSchema,
} from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { branchSteps, leafSteps, sampleSteps } from './samples.ts';

/** Set by the server, and ignored in requests. */
const SERVER_SET = [
  'Step.commit_time',
  'Step.writer_epoch',
  'Step.reward_sum',
  'Content.size',
  'Content.pruned_time',
  'StepState.size',
  'StepState.pruned_time',
  'StepState.attach_time',
];

function* setFields(message: ReflectMessage): Generator<string> {
  for (const field of message.fields) {
    if (!message.isSet(field)) continue;
    yield `${message.desc.name}.${field.name}`;
    if (field.fieldKind === 'message') yield* setFields(message.get(field));
    if (field.fieldKind !== 'list' || field.listKind !== 'message') continue;
    for (const item of message.get(field) as ReflectList) yield* setFields(item as ReflectMessage);
  }
}

it('FM5: the sample steps of all protocols set every field of a step, so that a new field cannot be forgotten', () => {
  const set = new Set<string>();
  for (const step of [...sampleSteps(), ...branchSteps(), ...leafSteps()]) {
    for (const name of setFields(reflect(StepSchema, step))) if (!name.startsWith('Timestamp.')) set.add(name);
  }
  const schemas = [StepSchema, ActionSchema, ObservationSchema, ContentSchema, StepStateSchema, TensorSchema];
  const fields = schemas.flatMap((schema) => schema.fields.map((field) => `${schema.name}.${field.name}`));
  expect([...set].sort()).toEqual(fields.filter((name) => !SERVER_SET.includes(name)).sort());
});
