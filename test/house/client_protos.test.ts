import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { clearField, fromBinary, toJson } from '@bufbuild/protobuf';
import {
  type FileDescriptorProto,
  FileDescriptorProtoSchema,
  FileDescriptorSetSchema,
  FileOptionsSchema,
} from '@bufbuild/protobuf/wkt';
import { describe, expect, it } from 'vitest';
import { ROOT } from './source.ts';

/** The descriptor set that buf builds from a folder. Throws the errors of buf. */
function build(...args: string[]): Buffer {
  const buf = path.join(ROOT, 'node_modules/.bin/buf');
  const flags = ['--exclude-source-info', '--as-file-descriptor-set', '--output', '-'];
  return execFileSync(buf, ['build', ...args, ...flags], { cwd: ROOT });
}

function filesOf(bytes: Uint8Array): FileDescriptorProto[] {
  return fromBinary(FileDescriptorSetSchema, bytes).file;
}

function isOwn({ name }: FileDescriptorProto): boolean {
  return name.startsWith('anabranch/v1/');
}

/**
 * The declarations of a file, without validation rules: these are extensions, which toJson() omits. Empty options equal
 * none.
 */
function declarationsOf(file: FileDescriptorProto): unknown {
  file.dependency = file.dependency.filter((name) => name !== 'buf/validate/validate.proto');
  const withoutEmptyOptions = (key: string, value: unknown) =>
    key === 'options' && Object.keys(value as object).length === 0 ? undefined : value;
  return JSON.parse(JSON.stringify(toJson(FileDescriptorProtoSchema, file), withoutEmptyOptions));
}

describe('the protos for clients, gen/proto', () => {
  it('compile without imports except google/protobuf, and name a package for Go', () => {
    const files = filesOf(build('gen/proto'));
    const foreign = files.filter((file) => !isOwn(file) && !file.name.startsWith('google/protobuf/'));
    expect(foreign.map(({ name }) => name)).toEqual([]);
    const packages = files.filter(isOwn).map(({ options }) => options?.goPackage);
    expect(new Set(packages)).toEqual(new Set(['anabranch/v1;anabranchv1']));
  });

  it('declare what proto/ declares, without the validation rules', () => {
    const stripped = filesOf(build('gen/proto')).filter(isOwn);
    for (const { options } of stripped) {
      clearField(options!, FileOptionsSchema.field.goPackage);
      clearField(options!, FileOptionsSchema.field.javaMultipleFiles);
    }
    const original = filesOf(build('.', '--path', 'proto/anabranch')).filter(isOwn);
    expect(original.length).toBeGreaterThan(5);
    expect(stripped.map(declarationsOf)).toEqual(original.map(declarationsOf));
  });
});

describe('the descriptor set for clients, gen/anabranch.binpb', () => {
  it('is that of proto/, with validation rules and all imports', () => {
    const shipped = readFileSync(path.join(ROOT, 'gen/anabranch.binpb'));
    expect(shipped.equals(build('.', '--path', 'proto/anabranch'))).toBe(true);
    const names = filesOf(shipped).map(({ name }) => name);
    expect(names).toContain('buf/validate/validate.proto');
    const wanted = filesOf(shipped).flatMap(({ dependency }) => dependency);
    expect(wanted.filter((name) => !names.includes(name))).toEqual([]);
  });
});
