//! The files that a package has beside a program, from the program's own definition of its commands.

use crate::terminal::Failure;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `generate`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A directory that stands for /usr/share: man1, completions of bash, zsh and fish are written beneath it
    share: PathBuf,
}

/// Sections of a program's man pages beyond its options.
#[derive(Debug)]
pub struct Manual {
    /// Sections of the page of the program itself: heading and text, in their order.
    pub sections: &'static [(&'static str, &'static str)],
    /// Related pages, which all pages of the program refer to.
    pub see_also: &'static [&'static str],
}

/// Writes a program's man pages and shell completions.
///
/// # Errors
/// A directory or a file cannot be written.
pub fn generate_package_files(
    mut program: clap::Command,
    manual: &Manual,
    options: &Options,
) -> Result<ExitCode, Failure> {
    let name = program.get_name().to_owned();
    let directory = make_directory(options, "man/man1")?;
    let mut built = program.clone().disable_help_subcommand(true);
    built.build();
    write_pages(&built, manual, &directory)?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/vendor-completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let place = make_directory(options, place)?;
        let written = clap_complete::generate_to(shell, &mut program, &name, &place);
        let written = written.map_err(|error| Failure::file_broken(&place, error))?;
        // bash-completion looks for a file named like the command.
        if shell == Shell::Bash {
            let named = place.join(&name);
            std::fs::rename(&written, &named).map_err(|error| Failure::file_broken(&named, error))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &clap::Command, manual: &Manual, directory: &Path) -> Result<(), Failure> {
    let name = page_name(command);
    let path = directory.join(format!("{name}.1"));
    let page = render_page(command, &name, manual).map_err(|error| Failure::file_broken(&path, error))?;
    std::fs::write(&path, page).map_err(|error| Failure::file_broken(&path, error))?;
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|command| write_pages(command, manual, directory))
}

fn page_name(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Returns a page: what clap knows of the command, then the paragraphs after its options, each in its section.
fn render_page(command: &clap::Command, name: &str, manual: &Manual) -> std::io::Result<Vec<u8>> {
    let is_program = name == command.get_name();
    let man = Man::new(command.clone()).title(name).manual("Thalweg");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    for (heading, text) in after_help_sections(command) {
        render_section(heading, &text, &mut page)?;
    }
    let sections = if is_program { manual.sections } else { &[] };
    for (heading, text) in sections {
        render_section(heading, text, &mut page)?;
    }
    let program =
        name.split('-').take(if name.starts_with("thalweg-lab") { 2 } else { 1 }).collect::<Vec<_>>().join("-");
    let own = (!is_program).then(|| format!("{program}(1)"));
    let others = manual.see_also.iter().map(|page| (*page).to_owned());
    let related: Vec<String> = own.into_iter().chain(others).collect();
    render_section("SEE ALSO", &related.join(", "), &mut page)?;
    Ok(page)
}

/// Splits the text after a command's options into sections: examples, exit status, and notes.
fn after_help_sections(command: &clap::Command) -> Vec<(&'static str, String)> {
    let text = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let (mut notes, mut examples, mut exit) = (Vec::new(), Vec::new(), Vec::new());
    for paragraph in text.split("\n\n").map(str::trim_end).filter(|paragraph| !paragraph.is_empty()) {
        match (paragraph.strip_prefix("Examples:\n"), paragraph.strip_prefix("Exit code: ")) {
            (Some(lines), _) => examples.push(lines.to_owned()),
            (_, Some(codes)) => exit.push(codes.to_owned()),
            _ => notes.push(paragraph.to_owned()),
        }
    }
    [("NOTES", notes), ("EXAMPLES", examples), ("EXIT STATUS", exit)]
        .into_iter()
        .filter(|(_, paragraphs)| !paragraphs.is_empty())
        .map(|(heading, paragraphs)| (heading, paragraphs.join("\n\n")))
        .collect()
}

/// Writes a section of paragraphs. A paragraph of indented lines is shown as it is; one whose first line ends in a tab and
/// text is an entry of a list: `term<TAB>text`.
fn render_section(heading: &str, text: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for paragraph in text.split("\n\n") {
        if paragraph.starts_with("  ") {
            roff.control("PP", []).control("RS", ["4"]).control("nf", []);
            for line in paragraph.lines() {
                roff.text([roman(line.trim_start())]);
            }
            roff.control("fi", []).control("RE", []);
        } else if let Some((term, rest)) = paragraph.split_once('\t') {
            roff.control("TP", []).text([clap_mangen::roff::bold(term)]).text([roman(rest)]);
        } else {
            roff.control("PP", []).text([roman(paragraph.replace('\n', " "))]);
        }
    }
    roff.to_writer(page)
}

fn make_directory(options: &Options, name: &str) -> Result<PathBuf, Failure> {
    let path = options.share.join(name);
    std::fs::create_dir_all(&path).map_err(|error| Failure::file_usage(&path, error))?;
    Ok(path)
}
