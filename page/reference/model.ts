import { execFile } from 'node:child_process';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import {
  createFileRegistry,
  type DescEnum,
  type DescField,
  type DescFile,
  type DescMessage,
  type DescMethod,
  fromBinary,
  getOption,
  ScalarType,
} from '@bufbuild/protobuf';
import { FileDescriptorSetSchema, MethodOptions_IdempotencyLevel } from '@bufbuild/protobuf/wkt';
import { Role, role } from '../../gen/es/anabranch/v1/access_pb.js';
import { exampleOf } from './example.ts';

/** The reference of the API: what /docs and /docs.txt are written from. */
export interface Reference {
  readonly services: readonly ServiceEntry[];
  /** Messages that are not the request or the response of an RPC, in the order of their files. */
  readonly messages: readonly MessageEntry[];
  readonly enums: readonly EnumEntry[];
  /** Reasons of errors. */
  readonly reasons: EnumEntry;
}

export interface ServiceEntry {
  readonly name: string;
  readonly comment: string;
  readonly rpcs: readonly RpcEntry[];
}

export interface RpcEntry {
  readonly name: string;
  /** The least role that may call it, on a server with authentication. */
  readonly role: string;
  /** Path of the call on the server. */
  readonly path: string;
  readonly kind: 'unary' | 'client stream' | 'server stream' | 'bidirectional stream';
  /** True if a repeated call changes nothing more. */
  readonly idempotent: boolean;
  readonly comment: string;
  /** Reasons with which the call can fail, and notes on them. Empty if it has none of its own. */
  readonly errors: string;
  readonly request: MessageEntry;
  readonly response: MessageEntry;
  /** A request as JSON. */
  readonly example: string;
}

export interface MessageEntry {
  readonly name: string;
  readonly comment: string;
  readonly fields: readonly FieldEntry[];
}

export interface FieldEntry {
  readonly name: string;
  readonly jsonName: string;
  /** `repeated Step`, `map<string, double>`. */
  readonly type: string;
  /** Name of the message or enum in the type, if it is one of the API. */
  readonly refersTo: string | undefined;
  /** Of fields of one oneof, at most one is set. */
  readonly oneof: string | undefined;
  readonly comment: string;
}

export interface EnumEntry {
  readonly name: string;
  readonly comment: string;
  /** Names without the prefix of the enum. */
  readonly values: readonly { readonly name: string; readonly number: number; readonly comment: string }[];
}

const ROOT = path.resolve(import.meta.dirname, '../..');
const PACKAGE = 'anabranch.v1.';
const REASONS = 'ErrorReason';
/** Services in the order in which people need them. */
const SERVICES = [
  'TrajectoryService',
  'StateService',
  'RunService',
  'RolloutService',
  'RetentionService',
  'ServerService',
  'AdminService',
];

/** Reads the reference from the protos without their validation rules. */
export async function readReference(): Promise<Reference> {
  const set = fromBinary(FileDescriptorSetSchema, await compileProtos());
  const files = [...createFileRegistry(set).files].filter(({ proto }) => `${proto.package}.` === PACKAGE);
  files.sort((a, b) => (a.name < b.name ? -1 : 1));
  const methods = files.flatMap((file) => file.services.flatMap((service) => service.methods));
  const ofRpcs = new Set(methods.flatMap(({ input, output }) => [input.typeName, output.typeName]));
  const enums = files.flatMap((file) => allEnums(file).map(enumEntry));
  const reasons = enums.find(({ name }) => name === REASONS);
  if (reasons === undefined) throw new Error(`the protos have no enum ${REASONS}`);
  return {
    services: files
      .flatMap((file) => file.services)
      .map((service) => ({
        name: service.name,
        comment: commentAt(service.file, [6, service.file.proto.service.indexOf(service.proto)]),
        rpcs: service.methods.map(rpcEntry),
      }))
      .toSorted((a, b) => SERVICES.indexOf(a.name) - SERVICES.indexOf(b.name)),
    messages: files
      .flatMap(allMessages)
      .filter(({ typeName }) => !ofRpcs.has(typeName))
      .map(messageEntry),
    enums: enums.filter((each) => each !== reasons),
    reasons,
  };
}

/** Returns the descriptors of the protos with their comments, which the generated code does not have. */
async function compileProtos(): Promise<Buffer> {
  const buf = path.join(ROOT, 'node_modules/@bufbuild/buf/bin/buf');
  const args = [buf, 'build', path.join(ROOT, 'gen/proto'), '--output', '-#format=binpb'];
  const { stdout } = await promisify(execFile)(process.execPath, args, { encoding: 'buffer', maxBuffer: 1 << 26 });
  return stdout;
}

function rpcEntry(method: DescMethod): RpcEntry {
  const { parent, proto, input, output, idempotency } = method;
  const { file } = parent;
  const comment = commentAt(file, [6, file.proto.service.indexOf(parent.proto), 2, parent.proto.method.indexOf(proto)]);
  const [text = '', errors = ''] = comment.split(/\bErrors:\s(?=[A-Z_]+\b)/);
  return {
    name: method.name,
    role: Role[getOption(method, role)] ?? '',
    path: `/${parent.typeName}/${method.name}`,
    kind: KINDS[method.methodKind],
    idempotent: idempotency !== MethodOptions_IdempotencyLevel.IDEMPOTENCY_UNKNOWN,
    comment: text.trim(),
    errors: errors.trim(),
    request: messageEntry(input),
    response: messageEntry(output),
    example: JSON.stringify(exampleOf(input), null, 2),
  };
}

const KINDS = {
  unary: 'unary',
  client_streaming: 'client stream',
  server_streaming: 'server stream',
  bidi_streaming: 'bidirectional stream',
} as const;

function messageEntry(message: DescMessage): MessageEntry {
  const path = pathOf(message);
  return {
    name: shortName(message.typeName),
    comment: commentAt(message.file, path),
    fields: message.fields.map((field) => ({
      name: field.name,
      jsonName: field.jsonName,
      type: typeText(field),
      refersTo: referenceOf(field),
      oneof: field.oneof?.name,
      comment: commentAt(message.file, [...path, 2, message.proto.field.indexOf(field.proto)]),
    })),
  };
}

function enumEntry(each: DescEnum): EnumEntry {
  const path = pathOf(each);
  return {
    name: shortName(each.typeName),
    comment: commentAt(each.file, path),
    values: each.values.map((value, at) => ({
      name: value.localName,
      number: value.number,
      comment: commentAt(each.file, [...path, 2, at]),
    })),
  };
}

function typeText(field: DescField): string {
  if (field.fieldKind === 'map') return `map<${ScalarType[field.mapKey].toLowerCase()}, ${elementText(field)}>`;
  if (field.fieldKind === 'list') return `repeated ${elementText(field)}`;
  return elementText(field);
}

function elementText({ message, enum: values, scalar }: DescField): string {
  const named = message ?? values;
  return named === undefined ? String(ScalarType[scalar ?? ScalarType.INT32]).toLowerCase() : shortName(named.typeName);
}

function referenceOf({ message, enum: values }: DescField): string | undefined {
  const name = (message ?? values)?.typeName;
  return name?.startsWith(PACKAGE) === true ? shortName(name) : undefined;
}

function shortName(typeName: string): string {
  return typeName.startsWith(PACKAGE) ? typeName.slice(PACKAGE.length) : typeName;
}

function allMessages(parent: DescFile | DescMessage): DescMessage[] {
  const below = parent.kind === 'file' ? parent.messages : parent.nestedMessages;
  return below.flatMap((message) => [message, ...allMessages(message)]);
}

function allEnums(file: DescFile): DescEnum[] {
  return [...file.enums, ...allMessages(file).flatMap((message) => message.nestedEnums)];
}

/** Path of a message or an enum in its file, as SourceCodeInfo names it. */
function pathOf({ kind, parent, file, proto }: DescMessage | DescEnum): readonly number[] {
  const isMessage = kind === 'message';
  if (parent === undefined) {
    return isMessage ? [4, file.proto.messageType.indexOf(proto)] : [5, file.proto.enumType.indexOf(proto)];
  }
  const nested = isMessage ? [3, parent.proto.nestedType.indexOf(proto)] : [4, parent.proto.enumType.indexOf(proto)];
  return [...pathOf(parent), ...nested];
}

function commentAt({ proto }: DescFile, path: readonly number[]): string {
  const wanted = path.join();
  const found = proto.sourceCodeInfo?.location.find((each) => each.path.join() === wanted)?.leadingComments ?? '';
  return found
    .split('\n')
    .map((line) => line.trim())
    .join('\n')
    .trim();
}
