//! Devices for a file, recognised by its name and its first bytes: for `thalweg demo --input FILE…`.

use crate::file::{InputFile, file_error};
use crate::pgm::has_ending;
use crate::sigmf_files::{Container, recording_file_names};
use crate::{DeviceConfig, DeviceError, NpyConfig, PgmConfig, SigmfConfig, TiffConfig, VdifConfig, npy, tiff, vdif};
use std::path::{Path, PathBuf};

/// Returns the devices that play `inputs`, in that order; repeatedly if `looped`.
///
/// A SigMF recording makes one device, named by either of its files or both; an archive or collection makes one for
/// each of its recordings. A VDIF file makes one for each of its threads, since one event is one frame time across
/// threads. All PGM images, and those of directories, make one sequence, and so do all TIFF images.
///
/// # Errors
/// One of `inputs` cannot be read, or has no format that is known here.
pub fn devices_for(inputs: &[PathBuf], looped: bool) -> Result<Vec<DeviceConfig>, DeviceError> {
    let mut devices: Vec<Guess> = Vec::new();
    for input in inputs {
        match detect_format(input)? {
            Format::Sigmf => {
                for (file, recording) in sigmf_recordings(input)? {
                    let config = SigmfConfig { file, recording, samples_per_fragment: None, looped };
                    let device = Guess::Whole(config.into());
                    if !devices.contains(&device) {
                        devices.push(device);
                    }
                }
            }
            Format::Vdif => devices.extend(vdif::recording_threads(input)?.into_iter().map(|thread| {
                let (file, thread) = (input.clone(), Some(thread));
                Guess::Whole(VdifConfig { file, thread, sample_rate: None, rate: None, looped }.into())
            })),
            Format::Pgm => match devices.iter_mut().find_map(Guess::as_images_mut) {
                Some(images) => images.files.push(input.clone()),
                None => devices.push(Guess::Images(PgmConfig { files: vec![input.clone()], rate: None, looped })),
            },
            Format::Tiff => match devices.iter_mut().find_map(Guess::as_stacks_mut) {
                Some(stacks) => stacks.files.push(input.clone()),
                None => devices.push(Guess::Stacks(TiffConfig { files: vec![input.clone()], rate: None, looped })),
            },
            Format::Npy => {
                devices.push(Guess::Whole(NpyConfig { file: input.clone(), rate: None, looped }.into()));
            }
        }
    }
    Ok(devices.into_iter().map(Guess::into_config).collect())
}

/// Returns the recordings that a SigMF file stands for: the file of each, and its name in an archive or collection.
fn sigmf_recordings(input: &Path) -> Result<Vec<(PathBuf, Option<String>)>, DeviceError> {
    let Some(container) = Container::from_file_name(input) else {
        return Ok(vec![(recording_file_names(input).0, None)]);
    };
    let names = container.recording_names(input)?;
    if names.is_empty() {
        return Err(DeviceError::Empty { file: input.to_owned() });
    }
    Ok(names.into_iter().map(|name| (input.to_owned(), Some(name))).collect())
}

/// A device, or a sequence of files that others are added to.
#[derive(PartialEq)]
enum Guess {
    Whole(DeviceConfig),
    Images(PgmConfig),
    Stacks(TiffConfig),
}

impl Guess {
    fn as_images_mut(&mut self) -> Option<&mut PgmConfig> {
        if let Self::Images(images) = self { Some(images) } else { None }
    }

    fn as_stacks_mut(&mut self) -> Option<&mut TiffConfig> {
        if let Self::Stacks(stacks) = self { Some(stacks) } else { None }
    }

    fn into_config(self) -> DeviceConfig {
        match self {
            Self::Whole(device) => device,
            Self::Images(images) => images.into(),
            Self::Stacks(stacks) => stacks.into(),
        }
    }
}

enum Format {
    Sigmf,
    Vdif,
    Pgm,
    Tiff,
    Npy,
}

fn detect_format(path: &Path) -> Result<Format, DeviceError> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    match ending.as_str() {
        "sigmf-meta" | "sigmf-data" | "sigmf" | "sigmf-collection" => return Ok(Format::Sigmf),
        "vdif" => return Ok(Format::Vdif),
        "pgm" => return Ok(Format::Pgm),
        "tif" | "tiff" => return Ok(Format::Tiff),
        "npy" => return Ok(Format::Npy),
        _ => {}
    }
    if !path.exists() && recording_file_names(path).0.exists() {
        return Ok(Format::Sigmf);
    }
    let is_directory = std::fs::metadata(path).map_err(|error| file_error("looking at", path, error))?.is_dir();
    let format = if is_directory { format_of_directory(path)? } else { format_of_content(path)? };
    format.ok_or_else(|| DeviceError::NotRecognised { file: path.to_owned() })
}

/// Returns the format of the images in a directory, if there are any.
fn format_of_directory(path: &Path) -> Result<Option<Format>, DeviceError> {
    let entries = std::fs::read_dir(path).map_err(|error| file_error("looking at", path, error))?;
    let files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    if files.iter().any(|file| has_ending(file, &["pgm"])) {
        return Ok(Some(Format::Pgm));
    }
    Ok(files.iter().any(|file| has_ending(file, &tiff::ENDINGS)).then_some(Format::Tiff))
}

/// Returns the format that a file's first bytes show.
fn format_of_content(path: &Path) -> Result<Option<Format>, DeviceError> {
    let file = InputFile::open(path)?;
    Ok(match file.read_head(6)?[..] {
        [b'P', b'5', separator, ..] if separator.is_ascii_whitespace() => Some(Format::Pgm),
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Format::Tiff),
        ref head if head == npy::MAGIC => Some(Format::Npy),
        _ => vdif::looks_like_vdif(&file).then_some(Format::Vdif),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vdif::tests::{Written, recording};

    fn directory(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        dir
    }

    fn options<T: crate::DeviceKind>(device: &DeviceConfig) -> &T {
        device.options_as().unwrap_or_else(|| panic!("{device:?}"))
    }

    #[test]
    fn a_vdif_file_makes_a_device_for_each_thread() {
        let (dir, file) = recording(&[Written::at(4, 1, 0), Written::at(0, 1, 0), Written::at(4, 1, 1)]);
        let unnamed = dir.path().join("scan");
        std::fs::copy(&file, &unnamed).unwrap();
        for file in [file, unnamed] {
            let device = |thread| {
                DeviceConfig::from(VdifConfig {
                    file: file.clone(),
                    thread: Some(thread),
                    sample_rate: None,
                    rate: None,
                    looped: true,
                })
            };
            assert_eq!(devices_for(std::slice::from_ref(&file), true).unwrap(), [device(0), device(4)]);
        }
    }

    #[test]
    fn images_make_one_sequence_and_the_two_sigmf_files_one_device() {
        let image = b"P5 1 1 255 x".as_slice();
        let dir = directory(&[("a.pgm", image), ("b.img", image), ("c.sigmf-meta", b"{}"), ("c.sigmf-data", b"")]);
        let names = ["a.pgm", "c.sigmf-data", "b.img", "c.sigmf-meta", "c"].map(|name| dir.path().join(name));
        let devices = devices_for(&names, false).unwrap();
        let (images, samples) = (options::<PgmConfig>(&devices[0]), options::<SigmfConfig>(&devices[1]));
        assert_eq!(devices.len(), 2);
        assert_eq!(images.files, [names[0].clone(), names[2].clone()]);
        assert_eq!(samples.file, names[3]);
        let whole = devices_for(&[dir.path().to_owned()], false).unwrap();
        assert_eq!(
            whole,
            [DeviceConfig::from(PgmConfig { files: vec![dir.path().to_owned()], rate: None, looped: false })]
        );
    }

    #[test]
    fn arrays_and_image_stacks_are_known_by_name_and_by_their_first_bytes() {
        let dir = directory(&[
            ("a.npy", b"".as_slice()),
            ("array", b"\x93NUMPY\x01\0"),
            ("b.TIFF", b""),
            ("little", b"II*\0\x08\0\0\0"),
            ("big", b"MM\0+\0\x08\0\0"),
        ]);
        let names = ["a.npy", "array", "b.TIFF", "little", "big"].map(|name| dir.path().join(name));
        let devices = devices_for(&names, true).unwrap();
        let (named, unnamed) = (options::<NpyConfig>(&devices[0]), options::<NpyConfig>(&devices[1]));
        let images = options::<TiffConfig>(&devices[2]);
        assert_eq!(devices.len(), 3);
        assert_eq!((&named.file, &unnamed.file), (&names[0], &names[1]));
        assert_eq!(images.files, names[2..]);
    }

    #[test]
    fn each_recording_of_a_collection_makes_a_device() {
        let collection = br#"{"collection": {"core:streams": [{"name": "x"}, {"name": "y"}]}}"#;
        let dir =
            directory(&[("all.sigmf-collection", collection), ("none.sigmf-collection", b"{}"), ("a.sigmf", b"")]);
        let path = dir.path().join("all.sigmf-collection");
        let devices = devices_for(std::slice::from_ref(&path), true).unwrap();
        let recordings = devices.iter().map(|device| {
            let SigmfConfig { file, recording, .. } = options(device);
            assert_eq!(*file, path);
            recording.as_deref()
        });
        assert_eq!(recordings.collect::<Vec<_>>(), [Some("x"), Some("y")]);
        for empty in ["none.sigmf-collection", "a.sigmf"] {
            let error = devices_for(&[dir.path().join(empty)], true).unwrap_err().to_string();
            assert!(error.contains(empty), "{error}");
        }
    }

    #[test]
    fn what_is_not_known_is_named_with_what_would_be() {
        let dir = directory(&[("tape.dat", &[7; 4096]), ("empty", b""), ("P5.txt", b"P57 is a number")]);
        for name in ["tape.dat", "empty", "P5.txt", ""] {
            let error = devices_for(&[dir.path().join(name)], false).unwrap_err();
            assert!(matches!(error, DeviceError::NotRecognised { .. }), "{name}: {error}");
            let error = error.to_string();
            assert!(error.contains(name) && error.contains(".vdif") && error.contains("kind = \"raw\""), "{error}");
        }
        let error = devices_for(&[dir.path().join("absent")], false).unwrap_err().to_string();
        assert!(error.contains("absent"), "{error}");
    }
}
