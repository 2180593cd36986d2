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
    /// Lines at the end of the completions of bash.
    pub bash_lines: &'static str,
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
    let hidden = hidden_words(&program);
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/vendor-completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let place = make_directory(options, place)?;
        let written = clap_complete::generate_to(shell, &mut program, &name, &place);
        let written = written.map_err(|error| Failure::file_broken(&place, error))?;
        let shown = std::fs::read_to_string(&written).map(|script| without_words(&script, &hidden));
        let shown = shown.map(|script| match shell {
            Shell::Bash => with_one_prefix(&script, &name) + manual.bash_lines,
            _ => script,
        });
        shown
            .and_then(|script| std::fs::write(&written, script))
            .map_err(|error| Failure::file_broken(&written, error))?;
        // bash-completion looks for a file named like the command.
        if shell == Shell::Bash {
            let named = place.join(&name);
            std::fs::rename(&written, &named).map_err(|error| Failure::file_broken(&named, error))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the options and commands that the help does not show, unless another command shows one of the same name:
/// options with their hyphens.
fn hidden_words(program: &clap::Command) -> Vec<String> {
    let (mut hidden, mut shown) = (Vec::new(), Vec::new());
    let mut commands = vec![program];
    while let Some(command) = commands.pop() {
        for argument in command.get_arguments() {
            let list = if argument.is_hide_set() { &mut hidden } else { &mut shown };
            list.extend(argument.get_long().map(|long| format!("--{long}")));
        }
        for subcommand in command.get_subcommands() {
            let list = if subcommand.is_hide_set() { &mut hidden } else { &mut shown };
            list.push(subcommand.get_name().to_owned());
            commands.push(subcommand);
        }
    }
    hidden.retain(|word| !shown.contains(word));
    hidden
}

/// Returns a script of completions without these options and commands, which `clap_complete` writes like all others.
fn without_words(script: &str, hidden: &[String]) -> String {
    let mut out = String::new();
    for line in script.lines() {
        if let Some((before, words)) = line.split_once("opts=\"") {
            let shown = words.split(' ').filter(|word| {
                let word = word.trim_end_matches('"');
                !hidden.iter().any(|hidden| hidden == word)
            });
            let words = shown.collect::<Vec<_>>().join(" ");
            out += &format!("{before}opts=\"{}\"", words.trim_end_matches('"'));
        } else if hidden.iter().any(|word| offers_word(line, word)) {
            continue;
        } else {
            out += line;
        }
        out.push('\n');
    }
    out
}

/// Returns a script for bash in which the subcommands of a program whose name has a hyphen are found: `clap_complete`
/// writes that hyphen in two ways.
fn with_one_prefix(script: &str, name: &str) -> String {
    let [as_case, as_value] = ["__subcmd__", "__"].map(|hyphen| name.replace('-', hyphen) + "__subcmd__");
    script.replace(&as_case, &as_value)
}

/// Returns whether a line of a script for zsh or fish offers this option or command.
fn offers_word(line: &str, word: &str) -> bool {
    let forms = match word.strip_prefix("--") {
        Some(long) => [format!("{word}["), format!("{word}=["), format!(" -l {long} ")],
        None => [format!("'{word}:"), format!(" -a \"{word}\""), format!(" -f -a \"{word}\"")],
    };
    forms.iter().any(|form| line.contains(form))
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
    let named = command.clone().subcommand_help_heading("COMMANDS").subcommand_value_name("COMMAND");
    let man = Man::new(named).title(name).source(concat!("Thalweg ", env!("CARGO_PKG_VERSION"))).manual("Thalweg");
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction};

    #[test]
    fn completions_offer_what_the_help_shows_and_nothing_else() {
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help("A flag");
        let node = clap::Command::new("node")
            .arg(flag("stay"))
            .arg(flag("supervised").hide(true))
            .arg(Arg::new("trace").long("trace").hide(true).help("A file").conflicts_with("supervised"));
        let generate = clap::Command::new("generate").about("Files").hide(true);
        let program = clap::Command::new("program").subcommand(node).subcommand(generate);
        let share = tempfile::tempdir().unwrap();
        let manual = Manual { sections: &[], see_also: &[], bash_lines: "# The end.\n" };
        generate_package_files(program, &manual, &Options { share: share.path().to_owned() }).unwrap();
        // With the form in which a command is offered.
        for (file, offers, hidden_command) in [
            ("bash-completion/completions/program", "--stay", " generate"),
            ("zsh/vendor-completions/_program", "--stay[", "'generate:"),
            ("fish/vendor_completions.d/program.fish", "-l stay", "-a \"generate\""),
        ] {
            let script = std::fs::read_to_string(share.path().join(file)).unwrap();
            assert!(script.contains(offers), "{script}");
            let offered: Vec<&str> = script
                .lines()
                .filter(|line| line.contains("opts=") || line.contains("[A f") || line.contains("complete -c"))
                .filter(|line| ["supervised", "trace", hidden_command].iter().any(|hidden| line.contains(hidden)))
                .collect();
            assert!(offered.is_empty(), "{file}: {offered:#?}");
        }
        let bash = std::fs::read_to_string(share.path().join("bash-completion/completions/program")).unwrap();
        assert!(bash.ends_with("# The end.\n"), "{bash}");
    }
}
